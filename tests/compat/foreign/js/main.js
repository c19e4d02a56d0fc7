// The checks of kafkajs against one bootstrap address: node main.js HOST:PORT PREFIX [CHECK ...]
// Prints "ok|FAIL <tab> check <tab> reason" a line; exits with 1 when a check failed.
'use strict'

const assert = require('node:assert/strict')
const { Kafka, CompressionTypes, logLevel } = require('kafkajs')

const [bootstrap, prefix, ...wanted] = process.argv.slice(2)
const CHECK_MS = 60_000
const level = process.env.TRACES === 'true' ? logLevel.DEBUG : logLevel.NOTHING
const kafka = new Kafka({ clientId: 'foreign-js', brokers: [bootstrap], logLevel: level })
const numbered = (word, count) => Array.from({ length: count }, (_, i) => `${word}-${i}`)
const messages = (words) => words.map((value) => ({ key: value, value, partition: 0, headers: { word: value } }))

async function within(what, promise) {
  let timer
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not within ${CHECK_MS} ms: ${what}`)), CHECK_MS)
  })
  return Promise.race([promise, late]).finally(() => clearTimeout(timer))
}

async function connected(client, use) {
  await client.connect()
  try {
    return await use(client)
  } finally {
    await client.disconnect()
  }
}

async function topic(name, numPartitions = 1) {
  const made = `${prefix}-js-${name}`
  await connected(kafka.admin(), (admin) => admin.createTopics({ topics: [{ topic: made, numPartitions }], waitForLeaders: true }))
  return made
}

// Joins `groupId`, reads until `count` records have come, commits them and leaves.
async function read(topicName, groupId, count, readUncommitted = false) {
  return connected(kafka.consumer({ groupId, readUncommitted }), async (consumer) => {
    const found = []
    await consumer.subscribe({ topics: [topicName], fromBeginning: true })
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
      consumer.run({
        eachMessage: async ({ message }) => {
          found.push(message)
          if (found.length >= count) resolve()
        },
      }).catch(reject)
    })
    await consumer.stop()
    return found
  })
}

const values = (found) => found.map((message) => message.value.toString())

async function produceAndConsume(codec) {
  const made = await topic(`plain-${codec}`)
  const words = numbered('v', 300)
  await connected(kafka.producer(), (producer) =>
    producer.send({ topic: made, compression: CompressionTypes[codec], messages: messages(words) }))
  const found = await read(made, made, words.length)
  assert.deepEqual(values(found), words)
  assert.deepEqual(found.map((message) => message.headers.word.toString()), words)
}

async function groupGoesOn() {
  const made = await topic('group')
  for (const word of ['first', 'second']) {
    await connected(kafka.producer({ idempotent: true }), (producer) =>
      producer.send({ topic: made, messages: messages(numbered(word, 20)) }))
    assert.deepEqual(values(await read(made, made, 20)), numbered(word, 20))
  }
}

async function transactions() {
  const made = await topic('txn')
  await connected(kafka.producer({ transactionalId: made, idempotent: true, maxInFlightRequests: 1 }), async (producer) => {
    for (const word of ['kept', 'dropped', 'kept-too']) {
      const transaction = await producer.transaction()
      await transaction.send({ topic: made, messages: messages(numbered(word, 20)) })
      await (word === 'dropped' ? transaction.abort() : transaction.commit())
    }
  })
  assert.deepEqual(values(await read(made, `${made}-c`, 40)), [...numbered('kept', 20), ...numbered('kept-too', 20)])
  await read(made, `${made}-u`, 60, true)
}

async function offsetsInTransaction() {
  const made = await topic('txn-offsets')
  await connected(kafka.producer({ transactionalId: made, idempotent: true, maxInFlightRequests: 1 }), async (producer) => {
    for (const [offset, commit] of [['3', true], ['5', false]]) {
      const transaction = await producer.transaction()
      await transaction.send({ topic: made, messages: messages(['v']) })
      await transaction.sendOffsets({ consumerGroupId: made, topics: [{ topic: made, partitions: [{ partition: 0, offset }] }] })
      await (commit ? transaction.commit() : transaction.abort())
    }
  })
  await connected(kafka.admin(), async (admin) => {
    const [found] = await admin.fetchOffsets({ groupId: made, topics: [made] })
    assert.equal(found.partitions[0].offset, '3')
  })
}

async function administration() {
  const made = await topic('admin', 2)
  await connected(kafka.admin(), async (admin) => {
    await admin.createPartitions({ topicPartitions: [{ topic: made, count: 4 }] })
    for (let partitions = 0; partitions < 4;) {
      partitions = (await admin.fetchTopicMetadata({ topics: [made] })).topics[0].partitions.length
    }
    await admin.alterConfigs({ validateOnly: false, resources: [{ type: 2, name: made, configEntries: [{ name: 'retention.ms', value: '777777' }] }] })
    for (let value = ''; value !== '777777';) {
      const { resources } = await admin.describeConfigs({ resources: [{ type: 2, name: made, configNames: ['retention.ms'] }], includeSynonyms: false })
      value = resources[0].configEntries[0].configValue
    }
    assert.deepEqual((await admin.fetchTopicOffsets(made)).map(({ low, high }) => [low, high]), Array(4).fill(['0', '0']))
    await admin.deleteTopics({ topics: [made] })
    while ((await admin.listTopics()).includes(made));
  })
}

const checks = {
  'produce and consume, none': () => produceAndConsume('None'),
  'produce and consume, gzip': () => produceAndConsume('GZIP'),
  'group goes on where it committed, idempotent producer': groupGoesOn,
  'transactions: commit, abort, both isolation levels': transactions,
  'transactions: offsets of a group': offsetsInTransaction,
  'admin: create, grow, alter and delete topics': administration,
}

async function main() {
  let failed = false
  for (const [name, run] of Object.entries(checks)) {
    if (wanted.length && !wanted.includes(name)) continue
    try {
      await within(name, run())
      console.log(`ok\t${name}\t`)
    } catch (error) {
      failed = true
      console.log(`FAIL\t${name}\t${String(error.message).replace(/\s+/g, ' ')}`)
    }
  }
  process.exit(failed ? 1 : 0)
}

main()
