"""report.html, the one page a person reads after a run, and the comparison of several runs."""
