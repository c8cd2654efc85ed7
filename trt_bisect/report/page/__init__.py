"""The report as one page, ``report.html``: its data, template, scripts and styles."""
