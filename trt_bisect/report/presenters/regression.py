"""A nightly comparison as JUnit XML and Markdown."""

from __future__ import annotations

from trt_bisect.report.regression.junit import junit_xml
from trt_bisect.report.regression.markdown import markdown

__all__ = ["junit_xml", "markdown"]
