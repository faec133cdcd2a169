"""pdguard: find, prove and fix cross-request KV-cache exposure in SGLang prefill/decode deployments."""

__version__ = "0.1.0"
