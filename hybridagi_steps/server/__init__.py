"""The HTTP service and the MCP server over one memory.

Both are thin: every route is one call of the memory, of its sessions or of a runner, and says in
HTTP what that call says in Python. Nothing here is imported by the rest of the package; DSPy is
loaded only when a program is served.
"""
