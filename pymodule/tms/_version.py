"""The version of this package; the library's own is in `tms.stats()`."""

version = "0.1.0"
