"""Measures real kernels on the device at hand, through torch (extra `[measure]`), and writes them to one file.

    from roofline.measure import measure, measure_decode_utilization

Nothing here imports torch before something is measured.
"""

from roofline.measure.records import Log, read_measurements
from roofline.measure.run import measure
from roofline.measure.utilization import DecodeUtilization, measure_decode_utilization

__all__ = ["DecodeUtilization", "Log", "measure", "measure_decode_utilization", "read_measurements"]
