"""Policy: loads checks, evaluates them over facts, applies waivers. Policy never collects."""
