"""Fast paths: requests and answers of the hottest APIs without kio, whose classes cost more than what they carry.

Begin in `produce`. A fast path accepts what the general reader accepts, refuses what that refuses, and writes the same
bytes (property tests hold both against each other). Registered in `codec.requests`. May import `codec`'s modules.
"""
