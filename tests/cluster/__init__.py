"""Tests of pdguard.cluster."""
