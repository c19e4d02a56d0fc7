"""Lives of whole regions under faults that are drawn from one seed, judged from what their clients saw."""
