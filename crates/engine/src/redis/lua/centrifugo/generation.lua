-- Which process and which replication history of the server this is: data may have been lost when it is another. Nothing of it is kept in
-- Centrifugo's layout. Also sends a message through the server's publish/subscribe. KEYS: one that says the slot, or none.
-- ARGV: nothing, the message, its channel. Returns both, version, policy of eviction, keys evicted so far.
local c = redis.call
local replication = c('INFO', 'replication')
if not string.find(replication, 'role:master') then
  return redis.error_reply('READONLY this server is a replica')
end
local server, memory = c('INFO', 'server'), c('INFO', 'memory')
c('@publish', ARGV[3], ARGV[2])
return {
  string.match(server, 'run_id:(%w+)') .. '/' .. string.match(replication, 'master_replid:(%w+)'),
  string.match(server, 'redis_version:([%w.]+)') or '',
  string.match(memory, '\nmaxmemory:(%d+)') == '0' and '' or string.match(memory, 'maxmemory_policy:([%w-]+)') or '',
  string.match(c('INFO', 'stats'), 'evicted_keys:(%d+)') or '0',
}
