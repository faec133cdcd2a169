"""Fingerprints: what a source file holds, by structure. Finds fixes and faults; judges nothing."""
