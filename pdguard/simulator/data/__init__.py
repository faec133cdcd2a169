"""Recorded and synthesised answers, one file a version; read by `pdguard.simulator.answers`."""
