"""A package, because tests/model has a test_saving.py as well."""
