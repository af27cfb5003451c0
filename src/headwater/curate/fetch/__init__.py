"""Fetching: addresses in, local files and a receipt out. See `fetch.py` for the whole, `transfer.py` for one file."""
