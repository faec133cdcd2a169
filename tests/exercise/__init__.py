"""Tests of pdguard.exercise."""
