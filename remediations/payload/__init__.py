"""Fixes for cross-request KV-cache exposure in SGLang prefill/decode deployments, put here by pdguard.

These modules are pdguard's own and no part of SGLang. Files of the engine that call them say so in their
first lines. `pdguard harden --status --target <this package>` tells what was changed and when;
`pdguard harden --rollback --target <this package>` takes everything back, byte for byte.
"""
