"""Elephas' import path for hyper-parameter search."""

from elephas_like.compat.elephas import HyperasWorker
from elephas_like.core.pruning import MedianRule
from elephas_like.tuning.hyperas import HyperParamModel
from elephas_like.tuning.result import SearchResult
from elephas_like.tuning.search import search

__all__ = ["HyperParamModel", "HyperasWorker", "MedianRule", "SearchResult", "search"]
