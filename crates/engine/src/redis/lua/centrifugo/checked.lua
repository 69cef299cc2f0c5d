-- Before a publication with an idempotency key or a version. KEYS: 3 where the key's result is, if there is one.
-- ARGV: 5 milliseconds it is remembered; 6 version, 0 for none; 7 epoch of the version.
-- Returns `=`, epoch and offset for a publication that is suppressed.
if KEYS[3] then
  local result = c('HMGET', KEYS[3], 'e', 's')
  if result[1] then return { '=', result[1], result[2] or '0' } end
end
if ARGV[6] ~= '0' then
  local last = c('HMGET', meta, 'v', 've', 'e', 's')
  if last[1] and (ARGV[7] == '' or ARGV[7] == last[2])
    and (#ARGV[6] < #last[1] or #ARGV[6] == #last[1] and ARGV[6] <= last[1]) then
    return { '=', last[3] or '', last[4] or '0' }
  end
end
