"""The report as one page, ``report.html``: its data, and the template, scripts and styles that it is made of."""
