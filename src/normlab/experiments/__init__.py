"""One module per chapter: functions that run an experiment and return a small table.

Notebooks call them with few seeds and draw; records call them with more.
"""
