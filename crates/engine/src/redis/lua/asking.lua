-- Around a script of one channel, at the node that imports the slot. Such a node takes several keys only if it has all of them, and one
-- whether it has it or not: KEYS has the first alone. ARGV: those of the script; its other keys; how many those are; which argument
-- ends with '@', in whose place the generation of this node's data goes: 0 for none. It is named after process and replication
-- history, for the key that it has otherwise may be on its way.
-- Returns what the script does, and what it published, for those who hear the channel where the slot comes from.
local real, published, keys = redis, {}, { KEYS[1] }
local at = tonumber(table.remove(ARGV))
for _ = 1, tonumber(table.remove(ARGV)) do table.insert(keys, 2, table.remove(ARGV)) end
if at > 0 then
  local run = string.match(real.call('INFO', 'server'), 'run_id:(%w+)')
  local history = string.match(real.call('INFO', 'replication'), 'master_replid:(%w+)')
  ARGV[at] = string.sub(ARGV[at], 1, -2) .. string.sub(run, 1, 16) .. string.sub(history, 1, 16)
end
local function call(command, key, ...)
  if command == '@publish' then
    published[#published + 1] = (...)
    real.pcall(command, key, ...)
    return 0
  end
  return real.call(command, key, ...)
end
local redis = { call = call, pcall = real.pcall, error_reply = real.error_reply }
local function run(KEYS)
@script
end
local result = run(keys)
if type(result) == 'table' and result.err then return result end
return { result, published }
