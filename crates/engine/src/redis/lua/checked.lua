-- Before a publication with an idempotency key or a version. KEYS: 3 where the key's result is, if there is one.
-- ARGV: 10 milliseconds it is remembered; 11 version, 0 for none; 12 epoch of the version.
-- Returns `=`, epoch and offset for a publication that is suppressed.
if KEYS[3] then
  local result = c('GET', KEYS[3])
  if result then
    local result_epoch, result_offset = string.match(result, '^(%w*):(%d+)$')
    return { '=', result_epoch, result_offset }
  end
end
if ARGV[11] ~= '0' then
  local last = c('HMGET', m, ':v', ':w')
  if last[1] and (ARGV[12] == '' or ARGV[12] == last[2])
    and (#ARGV[11] < #last[1] or #ARGV[11] == #last[1] and ARGV[11] <= last[1]) then
    local current = c('HGET', m, ':c')
    return { '=', current, c('HGET', m, current) }
  end
end
