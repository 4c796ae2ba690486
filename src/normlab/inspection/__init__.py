"""Instruments for any model: what norms it has, how it is wired, what flows through it.

:func:`normlab.inspect` is :func:`normlab.inspection.report.inspect`.
"""
