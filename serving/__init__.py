"""The data plane: an OpenAI-compatible front on Ray Serve over one SGLang engine per replica.

Kept empty of imports: SGLang loads `serving.sglang_plugin` in every one of its processes.
"""
