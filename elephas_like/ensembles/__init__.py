"""Several models as one: `train` and `members` fit them in parallel, `voting_model` lets them vote, `soups` averages weights.

`selection` chooses members greedily, `ensemble_files` saves and loads them. `scoring` and `recalibration` are what is done on
executors.
"""
