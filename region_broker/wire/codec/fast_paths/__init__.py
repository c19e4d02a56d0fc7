"""Fast paths: requests and answers of the hottest APIs without kio, whose classes cost more than what they carry."""
