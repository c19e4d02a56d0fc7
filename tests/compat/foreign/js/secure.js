// Comes in as standard input says (`tests/compat/secure_cases.py`): lists, writes and reads, each by a client of its own,
// and prints "begun", then "STEP <tab> ok", or "STEP <tab> refused <tab> why".
'use strict'

const fs = require('node:fs')
const { Kafka, logLevel } = require('kafkajs')

const LIMIT_MS = 25_000
const told = Object.fromEntries(fs.readFileSync(0, 'utf8').split('\n').filter(Boolean).map((line) => {
  const at = line.indexOf('=')
  return [line.slice(0, at), line.slice(at + 1)]
}))

function kafka() {
  const ssl = { ca: [fs.readFileSync(told.ca)] }
  if (told.certificate) {
    ssl.cert = fs.readFileSync(told.certificate)
    ssl.key = fs.readFileSync(told.key)
  }
  let sasl
  if (told.mechanism === 'OAUTHBEARER') {
    sasl = { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: told.secret }) }
  } else if (told.mechanism) {
    sasl = { mechanism: told.mechanism.toLowerCase(), username: told.user, password: told.secret }
  }
  return new Kafka({ clientId: 'secure-js', brokers: [told.bootstrap], ssl, sasl, logLevel: logLevel.NOTHING })
}

async function connected(client, use) {
  await client.connect()
  try {
    return await use(client)
  } finally {
    await client.disconnect()
  }
}

const steps = {
  list: () => connected(kafka().admin(), async (admin) => {
    if (!(await admin.listTopics()).includes(told.topic)) throw new Error('the topic is not in the list')
  }),
  produce: () => connected(kafka().producer(), (producer) =>
    producer.send({ topic: told.topic, messages: [{ value: told.value }] })),
  consume: () => connected(kafka().consumer({ groupId: `js-${told.value}` }), async (consumer) => {
    await consumer.subscribe({ topics: [told.topic], fromBeginning: true })
    await new Promise((resolve, reject) => {
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
      consumer.run({
        eachMessage: async ({ message }) => {
          if (message.value.toString() === told.value) resolve()
        },
      }).catch(reject)
    })
    await consumer.stop()
  }),
}

function within(promise) {
  const late = new Promise((_, reject) => {
    setTimeout(() => reject(new Error(`not done within ${LIMIT_MS} ms`)), LIMIT_MS).unref()
  })
  return Promise.race([promise, late])
}

async function main() {
  console.log('begun')
  await Promise.all(Object.entries(steps).map(async ([name, step]) => {
    let outcome = 'ok'
    try {
      await within(step())
    } catch (error) {
      outcome = `refused\t${error.name}: ${String(error.message).replace(/\s+/g, ' ')}`
    }
    console.log(`${name}\t${outcome}`)
  }))
  process.exit(0)
}

main()
