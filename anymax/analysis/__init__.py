"""Questions asked of trained runs, answered with tables and pictures."""
