-- Which generation of the server's data this is. It is another one whenever the process or its replication history is
-- another: data may have been lost then. Also sends a message through the server's publish/subscribe.
-- KEYS: the generation; channel of the message. ARGV: candidate for the generation, the message.
-- Returns generation, version, policy of eviction, keys evicted so far.
local c = redis.call
if redis.replicate_commands then redis.replicate_commands() end
local replication = c('INFO', 'replication')
if not string.find(replication, 'role:master') then
  return redis.error_reply('READONLY this server is a replica')
end
local server = c('INFO', 'server')
local life = string.match(server, 'run_id:(%w+)') .. '/' .. string.match(replication, 'master_replid:(%w+)') .. '/'
local stored = c('GET', KEYS[1])
if not stored or string.sub(stored, 1, #life) ~= life then
  stored = life .. ARGV[1]
  c('SET', KEYS[1], stored)
end
c('@publish', KEYS[2], ARGV[2])
local memory = c('INFO', 'memory')
return {
  string.sub(stored, #life + 1),
  string.match(server, 'redis_version:([%w.]+)') or '',
  string.match(memory, '\nmaxmemory:(%d+)') == '0' and '' or string.match(memory, 'maxmemory_policy:([%w-]+)') or '',
  string.match(c('INFO', 'stats'), 'evicted_keys:(%d+)') or '0',
}
