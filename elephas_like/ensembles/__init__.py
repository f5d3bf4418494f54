"""Several models as one: `train` and `members` fit them in parallel, `voting_model` lets them vote, `soups` averages weights.

`scoring` and `recalibration` are what they do on executors.
"""
