-- Before a publication with an idempotency key or a version. KEYS: 3 where the key's result is, if there is one.
-- ARGV: 8 milliseconds it is remembered; 9 version, 0 for none; 10 epoch of the version.
-- Returns `=`, epoch and offset for a publication that is suppressed.
if KEYS[3] then
  local result = c('GET', KEYS[3])
  if result then
    local result_epoch, result_offset = string.match(result, '^(%w*):(%d+)$')
    return { '=', result_epoch, result_offset }
  end
end
if ARGV[9] ~= '0' then
  local last = c('HMGET', m, ':v', ':w')
  if last[1] and (ARGV[10] == '' or ARGV[10] == last[2])
    and (#ARGV[9] < #last[1] or #ARGV[9] == #last[1] and ARGV[9] <= last[1]) then
    local current = c('HGET', m, ':c')
    return { '=', current, c('HGET', m, current) }
  end
end
