"""Tests of the quality rules and the classifier."""
