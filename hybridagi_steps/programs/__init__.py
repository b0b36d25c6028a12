"""The DSPy side: programs are recorded here, and recall is offered to them as modules.

DSPy is imported in this package and nowhere below it, except for the predictions. Import names from
the top level (`hs.record`, `hs.StepRetriever`) or from the module that defines them; this file
imports nothing, so that one part never pays for another.
"""
