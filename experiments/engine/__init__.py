"""Protocol, scoring, tuning, tracking, statistics and reports."""
