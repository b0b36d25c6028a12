"""What is remembered: plain, validated values without any I/O.

Import from the modules, or from `hybridagi_steps`; nothing is loaded here, because `predictions`
needs DSPy and the rest must start without it.
"""
