"""Negative requests: what the service does with prompts that it must refuse, and clients that leave."""
