"""What `dev --secure` and `demo --secure` print to paste: for librdkafka, Java, Python, our own commands and curl.

Not here: what is secret of it, and where that lies (`workbench.secure_cluster`).
"""

from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.secure_cluster import SecuredCluster, client_files, python_text


def logins_text(cluster: LocalCluster, made: SecuredCluster, context: str) -> str:
    """Return the parts, each below a title; `context` is what the commands are told to call the cluster."""
    files = client_files(made.admin, cluster.bootstrap)
    parts = {str(made.folder / name): text for name, text in files.items()}
    parts["Python"] = python_text(made.folder, cluster.bootstrap)
    parts["commands, and curl"] = (
        f"tidemark context set {context} --bootstrap {cluster.bootstrap} --url {cluster.http} --ca {made.admin.ca} --user {made.admin.user}"
        f" --password-file {made.folder / 'password'} --http-token-file {made.folder / 'http.token'}\n"
        f'curl --cacert {made.admin.ca} -H "Authorization: Bearer $(cat {made.folder / "http.token"})" {cluster.plan.nodes[0].http}/readyz\n'
    )
    return "".join(f"\n# {title}\n{text}" for title, text in parts.items()) + "\n"
