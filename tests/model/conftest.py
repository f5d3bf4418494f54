"""After every test here with Spark nothing of ours may be left."""

from leftovers import nothing_left

__all__ = ["nothing_left"]
