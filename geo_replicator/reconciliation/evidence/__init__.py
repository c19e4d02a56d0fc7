"""What segments prove, as tables: headers, markers, ledger facts, and the rows that engines move."""
