"""The APIs of logins, of users and of delegation tokens on the Kafka port.

Begin in `sasl_authenticate.py`. Imports `handlers.dispatch` and what that may, and `security.sasl`.
"""
