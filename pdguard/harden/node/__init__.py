"""The standard-library-only script that surveys an engine package on its node and swaps its files."""
