-- Part of a stream as a replica has it; nothing is written. KEYS: list, hash, generation of the server's data; none: only whether it can be
-- read from. ARGV: 1 generation, 4 to 8 as of `history.lua`.
-- Returns what that does, and the milliseconds the state lives, or -1. `BEHIND`: it has no stream of this generation.
local c, k, m = redis.call, KEYS[1], KEYS[2]
local replication = c('INFO', 'replication')
if not string.find(replication, 'role:slave') then return redis.error_reply('PROMOTED it is no replica any more') end
if not string.find(replication, 'master_link_status:up') then
  return redis.error_reply('MASTERDOWN its link to its primary is down')
end
if not k then return 1 end
@after
local stored, state = c('GET', KEYS[3]), c('HMGET', m, ':c', ':g', ':p')
local e, before = state[1], state[3]
if not e or state[2] ~= ARGV[1] or not stored or string.match(stored, '[^/]*$') ~= ARGV[1] then
  return redis.error_reply('BEHIND it has no stream of this generation')
end
local top = c('HGET', m, e)
if not top then return redis.error_reply('BEHIND it has no position') end
@page
return { e, top, before or '', entries, more, c('PTTL', m) }
