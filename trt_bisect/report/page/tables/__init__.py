"""The pages of ``compare``, ``sensitivity``, ``worst``, ``profile`` and ``check``: tables with their plots."""
