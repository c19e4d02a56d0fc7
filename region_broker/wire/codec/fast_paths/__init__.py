"""Requests and answers of the hottest APIs, read and written by hand: kio's classes cost more than what they carry."""
