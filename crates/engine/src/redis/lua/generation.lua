-- Which generation of the server's data this is. It is another one whenever the process or its replication history is
-- another: data may have been lost then. Also sends a message through the server's publish/subscribe.
-- KEYS: the generation; none where it cannot be asked for, because its slot moves to another node: the generation is then named
-- after process and replication history. ARGV: candidate for the generation, the message, channel of the message.
-- Returns generation, version, policy of eviction, keys evicted so far, host and port of the replicas that follow.
local c = redis.call
if redis.replicate_commands then redis.replicate_commands() end
local replication = c('INFO', 'replication')
if not string.find(replication, 'role:master') then
  return redis.error_reply('READONLY this server is a replica')
end
local server = c('INFO', 'server')
local run, history = string.match(server, 'run_id:(%w+)'), string.match(replication, 'master_replid:(%w+)')
local lineage = run .. '/' .. history .. '/'
local generation = string.sub(run, 1, 16) .. string.sub(history, 1, 16)
if KEYS[1] then
  local stored = c('GET', KEYS[1])
  if not stored or string.sub(stored, 1, #lineage) ~= lineage then
    stored = lineage .. ARGV[1]
    c('SET', KEYS[1], stored)
  end
  generation = string.sub(stored, #lineage + 1)
end
c('@publish', ARGV[3], ARGV[2])
local memory, replicas = c('INFO', 'memory'), {}
for host, port in string.gmatch(replication, 'slave%d+:ip=([^,]+),port=(%d+),state=online') do
  replicas[#replicas + 1] = host .. ' ' .. port
end
return {
  generation,
  string.match(server, 'redis_version:([%w.]+)') or '',
  string.match(memory, '\nmaxmemory:(%d+)') == '0' and '' or string.match(memory, 'maxmemory_policy:([%w-]+)') or '',
  string.match(c('INFO', 'stats'), 'evicted_keys:(%d+)') or '0',
  table.concat(replicas, ','),
}
