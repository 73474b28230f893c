"""Cases that time anymax against torch and the installed peers, as ratios measured in one run.

`timing` measures, `machine` says on what, one file per subject holds its cases, `report` shows the results.
"""
