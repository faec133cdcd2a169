"""Plans, applies, verifies and takes back the fix set on installed engines."""
