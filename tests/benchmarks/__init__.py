"""The measurements behind every number we print, one module per question.

Each module has `measure(**options)`, which returns plain numbers with the conditions they were
measured under, and `report(json_output, **options)`, which prints them.
"""
