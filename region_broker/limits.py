"""Every limit of the process in one place, related to each other by assertions at import.

Everything that a peer can make grow has a limit here.
Not here: limits of one topic (`controller.topic_configs`), of sockets (`ports.network`), time-outs of groups
and transactions (their own packages).
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Kafka's socket.request.max.bytes.
REQUEST_BYTES_MAX: Final = 100 * MIB
# The same of what carries no records. The largest that is answered names each topic of a region, or 20,000 partitions in topics of their own, by
# the longest names: 13 MB; what groups bring and are given is refused above 2 MiB.
OTHER_REQUEST_BYTES_MAX: Final = 16 * MIB
# An answer may hold what was asked for and one oversized first batch (KIP-74).
RESPONSE_BYTES_MAX: Final = 200 * MIB
# Elements of one array field in one request; also bounded by the bytes left in the frame.
ARRAY_ELEMENTS_MAX: Final = 100_000
# Tagged fields of one structure (KIP-482): no version of any request has more than ten.
TAGGED_FIELDS_MAX: Final = 50
# Elements of a request, and rows of an answer, that the event loop reads or writes in one go; what has more is done
# in pieces of PIECE_ELEMENTS (1 to 5 us each), and others are served in between.
ELEMENTS_AT_ONCE_MAX: Final = 1_000
PIECE_ELEMENTS: Final = 500
# The same for what handlers do: rows of work, up to 10 us each.
YIELD_ROWS: Final = 200
# What work costs of a turn of the event loop (`ports.turn_budget`), in bytes of requests of many small elements, some 1.2 us each: a request at least, a
# row of what names partitions, and how many bytes of records cost as much as one of those.
REQUEST_COST_MIN: Final = 256
ROW_COST: Final = 8
RECORD_BYTES_A_COST: Final = 1 * KIB
REQUEST_STRING_BYTES_MAX: Final = 32_767

# Requests of one connection that are being served at once; then its socket is left unread.
IN_FLIGHT_REQUESTS_MAX: Final = 64
# Answers that list all that there is, or tens of thousands of names, which a node makes at once: as objects each has some 10 to
# 40 MB, which nothing counts. What asks for names in a request of no more than SMALL_LISTING_BYTES waits for nobody, nor does what is
# described of these in FREE_HELD_BYTES.
LISTINGS_AT_ONCE_MAX: Final = 8
SMALL_LISTING_BYTES: Final = 4 * KIB
# Requests of more than ELEMENTS_AT_ONCE_MAX elements that a node decodes at once, and answers: each has up to some 15 MB of objects, beside its names.
LARGE_REQUESTS_MAX: Final = 8
# Bytes of requests of one connection that are being served at once (one more frame may exceed it).
IN_FLIGHT_BYTES_MAX: Final = 128 * MIB
# What requests and answers of all connections may hold together, unless the operator says otherwise
# (`request_memory_bytes`). When it is full, sockets are left unread; a connection that holds no more than
# FREE_HELD_BYTES is read all the same, and counts for nothing.
REQUEST_MEMORY_BYTES_DEFAULT: Final = 256 * MIB
REQUEST_MEMORY_BYTES_MIN: Final = 1 * MIB
# The same for the peer port, where whoever knows the cluster's id may speak.
PEER_MEMORY_BYTES: Final = 256 * MIB
FREE_HELD_BYTES: Final = 64 * KIB

SOCKET_READ_BYTES: Final = 256 * KIB
CONNECTIONS_MAX: Final = 10_000
# Unless the operator says otherwise (`connections_per_address_max`).
CONNECTIONS_PER_ADDRESS_DEFAULT: Final = 1_000
# New connections of one address in a second, unless the operator says otherwise (`connection_rate_per_address`), and
# for how many seconds' worth of them it may open at once.
CONNECTION_RATE_DEFAULT: Final = 1_000
CONNECTION_BURST_S: Final = 2
# Descriptors that connections leave to the files of partitions: half of what the process may open.
DESCRIPTORS_PER_CONNECTION: Final = 2
# Unless the operator says otherwise (`journal_bytes`); each half takes the largest block at least twice.
JOURNAL_BYTES_DEFAULT: Final = 32 * MIB
JOURNAL_BYTES_MIN: Final = 1 * MIB
JOURNAL_BYTES_MAX: Final = 256 * MIB
# A frame that has begun must be complete within this time, and a peer that does not read its answers is
# cut off after it.
FRAME_TIMEOUT_MS: Final = 60_000
WRITE_TIMEOUT_MS: Final = 60_000
# The same two while the memory budget is full: for the one frame whose turn it is, and for answers.
PRESSED_TIMEOUT_MS: Final = 10_000
# How long a node of this region may say nothing on its connection; it probes each NODE_PROBE_MS, and gives a
# connection up that does not answer within NODE_PROBE_TIMEOUT_MS.
NODE_SILENCE_MS: Final = 5_000
NODE_PROBE_MS: Final = 1_000
NODE_PROBE_TIMEOUT_MS: Final = 3_000
# Kafka's connections.max.idle.ms.
IDLE_TIMEOUT_MS: Final = 600_000
# What changes something waits that long in a region of several nodes while none of them can execute it: elections take less.
LEADER_WAIT_MS: Final = 3_000

FETCH_BYTES_MAX: Final = 55 * MIB  # Kafka's fetch.max.bytes
# What a Fetch reads in one step, some 1 ms, and of one partition, but for its first batch.
FETCH_STEP_BYTES: Final = 1 * MIB
FETCH_PARTITION_BYTES_MAX: Final = 8 * MIB
FETCH_PARTITION_COUNT_MAX: Final = 20_000
# Batches that one reading looks at in one step, 1.6 us each, and gives out: 1.3 MiB of the smallest.
READ_BATCHES_MAX: Final = 20_000
# The same of what another node or region is sent for a copy, which appends it in one step: 29 us each where they have producers.
COPIED_BATCHES_MAX: Final = 5_000
# Aborted transactions that one reading names beside its records, up to 10 us each: with the partition that reaches it no more is read. Of the first
# partition all are named, however many: who reads would tell what was aborted otherwise.
READ_ABORTED_MAX: Final = 5_000
# What each of them takes in memory until the answer is written.
ABORTED_ENTRY_BYTES: Final = 100
# Partitions of one ListOffsets, and the largest plain batch whose records are looked at on the event loop.
LOOKUPS_MAX: Final = 20_000
LOOKUP_BYTES_ON_LOOP_MAX: Final = 4 * KIB
# Batches that a lookup walks over in one step, 4 us each: usually an index leads it there, but where DeleteRecords went into a segment it says nothing.
LOOKUP_BATCHES_MAX: Final = 1_000
# Sealed batches that are opened in one step of a reader on the event loop; what is more is opened in a thread. Large ones go at some 5 GB/s, but each batch
# takes 7 us, and the smallest have some 200 bytes: 2 MiB of those would hold the loop for 70 ms. The other: of one that is sealed as it is produced.
OPENED_INLINE_BYTES_MAX: Final = 128 * KIB
SEALED_INLINE_BYTES_MAX: Final = 2 * MIB
# Of a Produce, what one step checks and writes, some 5 ms, but for its first batch; where it is sealed as well, SEALED_INLINE_BYTES_MAX.
PRODUCE_STEP_BYTES: Final = 8 * MIB
FETCH_WAIT_MS_MAX: Final = 300_000
# Kafka's max.incremental.fetch.session.cache.slots, and min.incremental.fetch.session.eviction.ms; a remembered
# partition takes about 500 bytes.
FETCH_SESSIONS_MAX: Final = 1_000
FETCH_SESSION_STALE_MS: Final = 120_000
FETCH_SESSION_PARTITIONS_MAX: Final = 100_000
# The body of one produce request: kept below the frame cap, which holds the header too.
RECORD_ERRORS_MAX: Final = (
    20_000  # records that one answer names as those for which their batch was refused
)
BATCH_BYTES_DEFAULT: Final = 1_048_588  # Kafka's max.message.bytes

# Decompression (2 kB of zstd can hold 64 MiB of zeros).
DECOMPRESSED_BYTES_MAX: Final = 64 * MIB
RECORD_COUNT_MAX: Final = 1_000_000
RECORD_HEADER_COUNT_MAX: Final = 10_000
# Batches of a node that are unpacked at once to be recompressed or looked through for keys, and others to be searched by time: each takes up to 0.3 GiB,
# and the interpreter's lock. And how far zstd looks back as it compresses: 128 MiB by its highest level take 0.6 GiB.
RECORD_THREADS: Final = 2
LOOKUP_THREADS: Final = 1
ZSTD_WINDOW_BYTES_MAX: Final = 8 * MIB  # what RFC 8878 asks encoders to keep to

# Compaction: keys in the cleaner's memory at once (about 120 bytes each; more are done in several passes), and
# what it reads a second (Kafka's log.cleaner.io.max.bytes.per.second has no limit by default).
CLEANER_KEYS_MAX: Final = 250_000
CLEANER_BYTES_PER_S: Final = 32 * MIB

TOPIC_NAME_LENGTH_MAX: Final = 249  # Kafka: Topic.MAX_NAME_LENGTH
PARTITION_COUNT_MAX: Final = 1_000
# Partitions of all topics together: each is a folder, two open files and a place in each tidemark, at each node, and what names all of a
# region's logs in one message or record has room for twice as many.
ALL_PARTITIONS_MAX: Final = 50_000
MIRROR_HOLD_MS: Final = 7 * 24 * 3_600_000
"""How long retention waits for a mirror that is not heard (T14)."""
CREATE_TOPICS_MAX: Final = 1_000
# A value of a topic's config: the longest that means anything is a number, a few words, or the name of a key. And how many configs a topic has that
# another region tells of: more than any version knows.
TOPIC_CONFIG_CHARS_MAX: Final = 300
TOPIC_CONFIG_COUNT_MAX: Final = 200
# Partitions in one answer of DescribeTopicPartitions (Kafka's max.request.partition.size.limit).
DESCRIBED_PARTITIONS_MAX: Final = 2_000
DESCRIBED_RESOURCES_MAX: Final = 2_000  # each with some forty configs
# What an answer may hold that describes groups, transactions, producers or offsets: names may be asked for twice.
DESCRIBED_BYTES_MAX: Final = 64 * MIB
# What it may hold also where the memory budget is full: clients take "too large" for final.
DESCRIBED_BYTES_FREE: Final = 1 * MIB
# Topics, partitions, resources, keys or groups that one administrative request may name.
ADMIN_ITEMS_MAX: Final = 20_000

# A loss statement that another node of the region sends: it names each log that a takeover touched.
STATEMENT_BYTES_MAX: Final = 64 * MIB
# Tails in quarantine that it names: one for each log that a takeover cut, a kilobyte each in memory.
TAILS_MAX: Final = 100_000

# Groups. Of a classic group what members bring and what its leader assigns is persisted in one ledger record, so both are
# bounded together with the member count.
GROUP_MEMBER_COUNT_MAX: Final = 1_000
# Groups of all kinds, and transactional ids, unless the operator says otherwise (`group_count_max`,
# `transactional_id_count_max`): clients make both by naming them. A group with one member or a few offsets takes 2 to
# 5 kB, a transactional id about 2 kB.
GROUP_COUNT_DEFAULT: Final = 20_000
TRANSACTIONAL_ID_COUNT_DEFAULT: Final = 50_000
# Producers without a transaction that one partition, and all partitions of a node together, know, unless the operator says otherwise
# (`partition_producers_max`, `producers_max`): clients make them by naming an id, 0.7 kB each. One log's are packed, 4 us each, in the step that
# begins a segment.
PARTITION_PRODUCERS_DEFAULT: Final = 20_000
PRODUCERS_DEFAULT: Final = 500_000
# The id of a new group. Kafka takes 32,767 bytes: of as many groups as there may be those would be more than a node keeps, or
# one answer lists.
GROUP_ID_BYTES_MAX: Final = 1_024
GROUP_PROTOCOL_COUNT_MAX: Final = 64
GROUP_NAME_BYTES_MAX: Final = 249  # ids of clients, instances, protocols; Kafka: as topic names
MEMBER_ID_BYTES_MAX: Final = (
    GROUP_NAME_BYTES_MAX + 37
)  # as we give them out: such a name, "-", and a UUID
MEMBER_METADATA_BYTES_MAX: Final = 1 * MIB
# Of a classic group: what all members bring (all protocols), and what its record holds of them (the protocol that was chosen) and of
# what they are given. Kafka's limit for the record is that of a batch, 1 MB by default. 10 ms for a MiB, each time that it is written.
GROUP_VALUE_BYTES_MAX: Final = 2 * MIB
# What the members of a group of the new protocol subscribe to, each in a record of its own; those of the classic one bring
# GROUP_VALUE_BYTES_MAX of it at most, as the group may become a classic one.
GROUP_SUBSCRIPTION_BYTES_MAX: Final = 8 * MIB
OFFSET_METADATA_BYTES_MAX: Final = 4_096  # Kafka's offset.metadata.max.bytes
# What one OffsetCommit or TxnOffsetCommit may write, in one batch (some 40,000 offsets). Kafka's limit there is that of
# a batch, 1 MB by default.
OFFSET_COMMIT_BYTES_MAX: Final = 4 * MIB
# Offsets that open transactions have staged, over all shards of a node, each with 64 characters of metadata: 300 to 900 bytes each. Beyond it a transaction
# stages no more than a few, without much metadata, so that who fills it keeps nobody out.
PENDING_OFFSETS_MAX: Final = 500_000
FEW_OFFSETS: Final = 40
# The same of all shards, and with what groups have committed, unless the operator says otherwise (`committed_offsets_max`). Beyond it a group has no more
# than a few.
COMMITTED_OFFSETS_DEFAULT: Final = 1_000_000
# A pattern of topics (KIP-848): its length, and its states once repetitions are written out. A name of full
# length then costs TOPIC_NAME_LENGTH_MAX * TOPIC_REGEX_STATES_MAX steps at most.
TOPIC_REGEX_BYTES_MAX: Final = 1_024
TOPIC_REGEX_STATES_MAX: Final = 1_000
# Patterns that the members of one group may have together: what each stands for is looked at with each heartbeat.
GROUP_PATTERNS_MAX: Final = 20
# Names of topics, in letters, that one heartbeat writes at most of what the patterns of its group stand for, in one batch: 10 ms for a MiB, and a
# batch must fit what a node copies from another (PEER_FRAME_BYTES_MAX). It is 20 patterns with 27,000 topics of 60 letters each; the next one goes on.
GROUP_RESOLVED_BYTES_MAX: Final = 32 * MIB
# Aborted transactions whose markers lie in one segment: those of the open one are in memory, and are made into an index when it is full.
SEGMENT_ABORTED_MAX: Final = 20_000
SUBSCRIBED_TOPICS_MAX: Final = 10_000  # names that one member may subscribe to
# The same for a member of the classic protocol, which may bring MEMBER_METADATA_BYTES_MAX, and for all members of a group of the
# new one: more of these have fewer than 17 letters each.
CLASSIC_TOPICS_MAX: Final = 50_000
# Partitions that such a member says that it has, or is given: as many as one fetch session remembers.
CLASSIC_PARTITIONS_MAX: Final = 100_000
# Topics that the members of a classic group subscribe to, and are given, all together, when it becomes one of the new
# protocol: 1.5 us each in the step that writes that. Of 18 letters each they are what GROUP_VALUE_BYTES_MAX holds.
UPGRADE_TOPICS_MAX: Final = 100_000
GROUP_TOPIC_NAMES_MAX: Final = 500_000

assert MEMBER_METADATA_BYTES_MAX < GROUP_VALUE_BYTES_MAX, "a group of one must be persistable"
assert max(FETCH_PARTITION_COUNT_MAX, ADMIN_ITEMS_MAX, LOOKUPS_MAX) * 2 < ARRAY_ELEMENTS_MAX, (
    "what an API allows, each in a topic of its own, must pass the guard"
)
assert ALL_PARTITIONS_MAX * TOPIC_NAME_LENGTH_MAX <= GROUP_RESOLVED_BYTES_MAX, (
    "what one pattern stands for must fit one batch"
)
assert YIELD_ROWS < PIECE_ELEMENTS <= ELEMENTS_AT_ONCE_MAX < ARRAY_ELEMENTS_MAX
assert BATCH_BYTES_DEFAULT < REQUEST_BYTES_MAX, "a batch must fit a request"
assert SEALED_INLINE_BYTES_MAX <= PRODUCE_STEP_BYTES
assert ALL_PARTITIONS_MAX * (TOPIC_NAME_LENGTH_MAX + 10) < OTHER_REQUEST_BYTES_MAX, (
    "all topics can be named"
)
assert FETCH_PARTITION_COUNT_MAX * 2 * (TOPIC_NAME_LENGTH_MAX + 50) < OTHER_REQUEST_BYTES_MAX, (
    "a session's partitions can be named, and as many forgotten"
)
assert max(GROUP_SUBSCRIPTION_BYTES_MAX, OFFSET_COMMIT_BYTES_MAX) < OTHER_REQUEST_BYTES_MAX
assert IN_FLIGHT_BYTES_MAX >= REQUEST_BYTES_MAX, "the largest request must be servable"
assert FREE_HELD_BYTES < REQUEST_MEMORY_BYTES_MIN <= REQUEST_MEMORY_BYTES_DEFAULT
assert PRESSED_TIMEOUT_MS < min(FRAME_TIMEOUT_MS, WRITE_TIMEOUT_MS) <= IDLE_TIMEOUT_MS
assert NODE_PROBE_MS + NODE_PROBE_TIMEOUT_MS < NODE_SILENCE_MS, (
    "who probes gives up before it is given up"
)
assert CONNECTION_RATE_DEFAULT * CONNECTION_BURST_S >= CONNECTIONS_PER_ADDRESS_DEFAULT, (
    "all clients of an address may come back at once"
)
assert CONNECTIONS_PER_ADDRESS_DEFAULT < CONNECTIONS_MAX, "one address must not take every place"
assert FETCH_BYTES_MAX + REQUEST_BYTES_MAX <= RESPONSE_BYTES_MAX, (
    "a full answer and one oversized first batch must fit an answer"
)
assert GROUP_ID_BYTES_MAX * GROUP_COUNT_DEFAULT < DESCRIBED_BYTES_MAX, "all groups can be listed"
assert FEW_OFFSETS * GROUP_COUNT_DEFAULT <= COMMITTED_OFFSETS_DEFAULT, (
    "what all groups have beyond the bound, a few each, is no more than the bound"
)
assert GROUP_VALUE_BYTES_MAX < GROUP_SUBSCRIPTION_BYTES_MAX
assert GROUP_SUBSCRIPTION_BYTES_MAX * 2 < DESCRIBED_BYTES_MAX < RESPONSE_BYTES_MAX, (
    "the largest group, metadata and assignments, must be describable"
)
assert FETCH_PARTITION_COUNT_MAX <= FETCH_SESSION_PARTITIONS_MAX, (
    "a session may hold one full request"
)
assert COPIED_BATCHES_MAX <= READ_BATCHES_MAX
assert DECOMPRESSED_BYTES_MAX >= BATCH_BYTES_DEFAULT, "an honest batch must be decompressible"

CATCH_UP_BYTES_PER_S_MAX: Final = 2**63 - 1
"""Of a node that copies what it lacks: Kafka's default, no limit."""
CHANGE_ATTEMPTS: Final = 8
"""How often a change of the metadata is made anew because another one came between."""
